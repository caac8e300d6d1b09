"""Search techniques, prompts, and knobs on dev, and evaluate the best program once on test.

``compile`` and ``study`` both use this package::

    spec = read_search(SearchSpec, {"name": "mine", "techniques": {"hyde": {}, "hcqr": {}}}, "the search")
    search = Search(spec, splits, reader, lm, {"dense": retriever}.__getitem__)
    worker = run_search(search)  # worker.finished(): the trials; worker.study: Optuna's study
    outcome = run_test(search, worker.finished())
"""
