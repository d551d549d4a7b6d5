"""What each kernel family tells the schedule rules about a body, and how its kernels are spelled as rows."""
