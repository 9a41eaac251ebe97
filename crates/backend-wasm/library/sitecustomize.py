import os, sys
os.chdir(os.environ["PWD"])
del os.environ["PYTHONPATH"]
sys.path.remove("/lib/belljar")
