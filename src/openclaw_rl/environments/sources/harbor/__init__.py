"""Tasks as folders of Harbor, in boxes of this machine, with a small agent of our own."""
