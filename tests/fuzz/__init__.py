"""Run directories and artefacts that somebody has damaged, or made to harm their reader."""
