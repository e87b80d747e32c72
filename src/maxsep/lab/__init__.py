"""Everything that trains and measures: data, networks, the engine, recipes, grids of runs, reports and benchmarks."""
