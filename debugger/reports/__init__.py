"""What a run found, for people and for machines: report.json, report.txt and junit.xml."""
