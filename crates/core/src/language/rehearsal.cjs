// Runs in a Node that is to be parked, and loads what the first `console.log` would load. It does not touch the program's own
// streams: accessing them sets them up, which is left to the program.
'use strict';

delete require.cache[__filename];
// A worker thread of the program also runs this script, and has nothing to rehearse.
if (process.env.NODE_OPTIONS !== `--require=${__filename}`) return;
delete process.env.NODE_OPTIONS;

require('tty');
const { Socket } = require('net');
const { Writable } = require('stream');
const nowhere = new Writable({ write: (chunk, encoding, done) => done() });
// Without colorMode, Node would look at stderr to decide about colours.
const rehearsed = new console.Console({ stdout: nowhere, stderr: nowhere, colorMode: false });
rehearsed.log(1, 'a', { a: [1] });
rehearsed.error(new Error('rehearsed').message);
new Socket().destroy();
