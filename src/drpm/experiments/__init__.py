"""One protocol for all applications: command line, run folder, resume, page, sweep and table.

An application declares a :class:`~drpm.experiments.base.Job` (the settings of a run) and an
:class:`~drpm.experiments.base.Experiment` (load, train, evaluate), and is listed in
:data:`~drpm.experiments.base.JOBS`.
"""
