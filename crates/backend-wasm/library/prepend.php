<?php
// What PHP on the command line has: this PHP was made for a web server.
define('STDIN', fopen('/dev/stdin', 'r'));
define('STDOUT', fopen('/dev/stdout', 'w'));
define('STDERR', fopen('/dev/stderr', 'w'));
