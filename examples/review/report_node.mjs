// Runs in the sandbox: applies the patch, if there is one, runs all tests, and writes junit.xml.

import { execFileSync } from 'node:child_process'
import { createWriteStream, existsSync, readdirSync } from 'node:fs'
import { run } from 'node:test'
import { junit } from 'node:test/reporters'

if (existsSync('.review.patch')) {
  execFileSync('git', ['apply', '.review.patch'])
}

const files = readdirSync('test').filter((name) => name.includes('.test.')).map((name) => `${process.cwd()}/test/${name}`)
run({ files })
  .on('test:fail', () => { process.exitCode = 1 })
  .compose(junit)
  .pipe(createWriteStream('junit.xml'))
