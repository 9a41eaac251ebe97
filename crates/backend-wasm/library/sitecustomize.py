import os, sys, time
os.chdir(os.environ["PWD"])
del os.environ["PYTHONPATH"]
sys.path.remove("/lib/belljar")

# The module counts CPU time in nanoseconds and takes them for hundredths of a second. No interpreter has used 1000 s by now.
if time.process_time() > 1000:
    def _repair(seconds, nanoseconds, times):
        time.process_time = lambda: seconds() / 10**7
        time.process_time_ns = lambda: nanoseconds() // 10**7
        os.times = lambda: os.times_result(value / 10**7 for value in times())
    _repair(time.process_time, time.process_time_ns, os.times)
    del _repair
