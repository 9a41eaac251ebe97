"""Belljar's backend for matplotlib. It draws like Agg. What `show` would have shown, it saves as figure-1.png, figure-2.png
and so on, and the run returns these files."""

import itertools
import os
import warnings
import weakref

from matplotlib._pylab_helpers import Gcf
from matplotlib.backend_bases import FigureManagerBase as FigureManager
from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas

_saved = weakref.WeakSet()


def show(*_, **__):
    # A preloaded matplotlib has this backend in every run, but only a run that asked for plots has the file.
    if os.path.exists(__file__):
        for manager in Gcf.get_all_fig_managers():
            figure = manager.canvas.figure
            if figure.stale or figure not in _saved:
                _save(figure)


def _save(figure):
    try:
        figure.savefig(_free_path(), format="png")
    except OSError as error:
        warnings.warn(f"the figure could not be saved: {error}", stacklevel=3)
    else:
        _saved.add(figure)
        figure.stale = False


def _free_path():
    paths = (os.path.join(os.path.expanduser("~"), f"figure-{number}.png") for number in itertools.count(1))
    return next(path for path in paths if not os.path.exists(path))
