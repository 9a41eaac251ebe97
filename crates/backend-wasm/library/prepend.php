<?php
// Constants that PHP has on the command line; this PHP was built for a web server.
define('STDIN', fopen('/dev/stdin', 'r'));
define('STDOUT', fopen('/dev/stdout', 'w'));
define('STDERR', fopen('/dev/stderr', 'w'));
