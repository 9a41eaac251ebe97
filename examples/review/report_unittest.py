"""Runs in the sandbox: applies the patch, if there is one, runs all tests, and writes junit.xml."""

import os
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree

if os.path.exists(".review.patch"):
    subprocess.run(["git", "apply", ".review.patch"], check=True)


class Result(unittest.TextTestResult):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.suite = ElementTree.Element("testsuite", name="unittest")

    def startTest(self, test):
        super().startTest(test)
        classname, _, name = test.id().rpartition(".")
        self.case = ElementTree.SubElement(self.suite, "testcase", classname=classname, name=name)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        ElementTree.SubElement(self.case, "failure", message=str(err[1]))

    def addError(self, test, err):
        super().addError(test, err)
        ElementTree.SubElement(self.case, "error", message=str(err[1]))

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        ElementTree.SubElement(self.case, "skipped", message=reason)


result = unittest.TextTestRunner(resultclass=Result).run(unittest.defaultTestLoader.discover("."))
ElementTree.ElementTree(result.suite).write("junit.xml")
sys.exit(not result.wasSuccessful())
