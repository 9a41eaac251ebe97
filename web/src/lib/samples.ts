// What the editor has when a language is chosen for the first time.
export const SAMPLES: Record<string, string> = {
  python: 'import sys\n\nprint("Hello from", sys.version.split()[0])\n',
  javascript: 'console.log("Hello from", process.version);\n',
  typescript: 'const greet = (name: string): string => `Hello, ${name}`;\nconsole.log(greet("box"));\n',
  bash: 'echo "Hello from $BASH_VERSION"\n',
  sh: "echo Hello from $(uname -s)\n",
  zsh: "echo Hello from $ZSH_VERSION\n",
  ruby: 'puts "Hello from #{RUBY_VERSION}"\n',
  php: '<?php\necho "Hello from ", PHP_VERSION, "\\n";\n',
  perl: 'print "Hello from $^V\\n";\n',
  lua: 'print("Hello from " .. _VERSION)\n',
  r: "cat(R.version.string, '\\n')\n",
  c: '#include <stdio.h>\n\nint main(void) {\n    puts("Hello");\n}\n',
  cpp: '#include <iostream>\n\nint main() {\n    std::cout << "Hello\\n";\n}\n',
  go: 'package main\n\nimport "fmt"\n\nfunc main() {\n\tfmt.Println("Hello")\n}\n',
  rust: 'fn main() {\n    println!("Hello");\n}\n',
  java: 'public class Main {\n    public static void main(String[] args) {\n        System.out.println("Hello");\n    }\n}\n',
};
