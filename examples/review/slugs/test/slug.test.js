const assert = require('node:assert')
const test = require('node:test')
const { slug } = require('../slug.js')

test('one word', () => assert.equal(slug('Hello'), 'hello'))
test('many words', () => assert.equal(slug('On the Road'), 'on-the-road'))
