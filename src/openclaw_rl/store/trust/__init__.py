"""Trust in judges by person, and evidence that is set aside in what is common to all people."""
