"""The report: one page, drawn from a study's records, that opens from disk without a network.

`evidence` reads the records, `sections/` turns them into figures and answers, one file a section,
`templates/` say it in both languages, `page/` holds the page's own modules and style, `assemble`
makes one file of it all. Nothing here computes a result that belongs to the laboratory.
"""
