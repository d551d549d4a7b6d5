"""What was measured, with today's meaning: rows of bodies, golden files that are held against today's rules, fits.

`emmy.extract` keeps evidence as it was written and chooses by it; here it is read back as bodies and schedules, which
needs the rules and the kernel families.
"""
