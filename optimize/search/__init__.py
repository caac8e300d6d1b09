"""A search in memory: techniques, prompts and numbers are tried on dev, and what dev chose is evaluated on test once.

``compile`` and ``study`` both use it::

    spec = read_search(SearchSpec, {"name": "mine", "techniques": {"hyde": {}, "hcqr": {}}}, "the search")
    search = Search(spec, splits, reader, lm, {"dense": retriever}.__getitem__)
    worker = run_search(search)  # worker.finished(): the trials; worker.study: Optuna's study
    outcome = run_test(search, worker.finished())
"""
