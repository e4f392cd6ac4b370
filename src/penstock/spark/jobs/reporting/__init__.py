"""The job `report`.

`job.py` the run, `facts.py` a row per message, `numbers.py` what is made of them, `windows.py` time in slices;
`charts.py`, `page.py` and `page.css` how it looks, `words.py` numbers for people.
"""
