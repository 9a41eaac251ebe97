// Runs in a Node that waits for its code: what the first `console.log` would load is there when the code comes. The program's own
// streams are left alone: to look at them is to set them up, which is the program's to do.
'use strict';

delete require.cache[__filename];
// A thread of the program's gets here too, where there is nothing to rehearse.
if (process.env.NODE_OPTIONS !== `--require=${__filename}`) return;
delete process.env.NODE_OPTIONS;

require('tty');
const { Socket } = require('net');
const { Writable } = require('stream');
const nowhere = new Writable({ write: (chunk, encoding, done) => done() });
// Whether to colour is decided by looking at stderr.
const rehearsed = new console.Console({ stdout: nowhere, stderr: nowhere, colorMode: false });
rehearsed.log(1, 'a', { a: [1] });
rehearsed.error(new Error('rehearsed').message);
new Socket().destroy();
