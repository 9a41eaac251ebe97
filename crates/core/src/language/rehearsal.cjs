// Runs in a Node that waits for its code: what the first `console.log` would load is there when the code comes.
'use strict';

delete require.cache[__filename];
// A thread of the program's gets here too, where there is nothing to rehearse.
if (process.env.NODE_OPTIONS !== `--require=${__filename}`) return;
delete process.env.NODE_OPTIONS;

const { Writable } = require('stream');
const nowhere = new Writable({ write: (chunk, encoding, done) => done() });
const rehearsed = new console.Console(nowhere, nowhere);
rehearsed.log(1, 'a', { a: [1] });
rehearsed.error(new Error('rehearsed').message);
for (const stream of [process.stdout, process.stderr]) stream.write('');
