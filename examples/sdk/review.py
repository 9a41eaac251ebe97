#!/usr/bin/env python3
"""A review agent: does a patch fix what it says, and break nothing else?

It runs the tests of a repository in a box before and after the patch. Neither the repository nor the patch is trusted, and
nothing of them is run outside the box.
"""

import re

from belljar import Belljar

REPOSITORY = {
    "slug.py": "def slug(title):\n    return title.lower().replace(' ', '-')\n",
    "test_slug.py": """
import unittest
from slug import slug

class SlugTest(unittest.TestCase):
    def test_words(self):
        self.assertEqual(slug("Two Words"), "two-words")

    def test_spaces_at_the_ends(self):
        self.assertEqual(slug("  Two Words "), "two-words")
""",
}
PATCH = {"slug.py": "def slug(title):\n    return '-'.join(title.lower().split())\n"}
BAD_PATCH = {"slug.py": "def slug(title):\n    return title.strip().lower()\n"}


def failing_tests(client, files):
    """The names of the tests that fail."""
    result = client.run("python", "import unittest; unittest.main('test_slug')", files=files, timeout=30)
    if not re.search(r"^Ran \d+ tests?", result.stderr, re.MULTILINE):
        raise RuntimeError(f"the tests did not run: {result.stderr}")
    return set(re.findall(r"^(?:FAIL|ERROR): (\w+)", result.stderr, re.MULTILINE))


def review(client, repository, patch):
    before, after = failing_tests(client, repository), failing_tests(client, {**repository, **patch})
    fixed, broken = sorted(before - after), sorted(after - before)
    verdict = "approve" if fixed and not after else "request changes"
    return f"{verdict}: fixes {', '.join(fixed) or 'nothing'}; breaks {', '.join(broken) or 'nothing'}"


if __name__ == "__main__":
    belljar = Belljar()
    print(review(belljar, REPOSITORY, PATCH))
    print(review(belljar, REPOSITORY, BAD_PATCH))
