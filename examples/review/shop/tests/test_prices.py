import unittest

from prices import total


class Total(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(total([1, 2]), 3)

    def test_discount_is_never_more_than_the_sum(self):
        self.assertEqual(total([1, 2], discount=5), 0)
