// npm's piston-client, as its readme uses it.
import assert from 'node:assert/strict';
import piston from 'piston-client';

const client = piston({ server: process.argv[2] });

const runtimes = await client.runtimes();
assert.ok(runtimes.some(({ language, aliases }) => language === 'python' && aliases.includes('py')));

const python = await client.execute('python', 'import sys; print("hello", sys.argv[1:])');
assert.equal(python.run.stdout, "hello ['1', '2', '3']\n");
assert.equal(python.run.code, 0);
assert.equal(python.language, 'python');

const cpp = await client.execute('c++', '#include <iostream>\nint main() { std::cout << 42; return 7; }');
assert.equal(cpp.compile.code, 0);
assert.deepEqual([cpp.run.output, cpp.run.code], ['42', 7]);

const configured = await client.execute({
    language: 'javascript',
    version: '*',
    files: [
        { name: 'main.js', content: 'console.log(require("./data.json").word, process.argv[2])' },
        { name: 'data.json', content: '{"word": "given"}' },
    ],
    args: ['here'],
    stdin: 'unread',
    runTimeout: 5000,
});
assert.equal(configured.run.output, 'given here\n');

const slow = await client.execute('bash', 'sleep 60', { runTimeout: 200 });
assert.deepEqual([slow.run.code, slow.run.signal, slow.run.status], [null, 'SIGKILL', 'TO']);

const unknown = await client.execute({ language: 'html', version: '5.0.0', files: [{ content: '<p>' }] });
assert.equal(unknown.message, 'html-5.0.0 runtime is unknown');
console.log('piston-client is served');
