"""The findings of a run, for people and for machines: report.json, report.txt and junit.xml."""
