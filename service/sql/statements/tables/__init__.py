"""FROM: tables, joins and their hints, and what makes rows there: generators, VALUES, PIVOT, ranges."""
