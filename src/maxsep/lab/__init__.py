"""Everything that trains: data, networks, the engine, recipes, grids of runs and reports."""
