// Syntax highlighting of each language that the server knows; a language that is not here is shown plain.
import { javascript } from "@codemirror/lang-javascript";
import { phpLanguage } from "@codemirror/lang-php";
import { python } from "@codemirror/lang-python";
import { LanguageSupport, StreamLanguage, type StreamParser } from "@codemirror/language";
import { c, cpp, java } from "@codemirror/legacy-modes/mode/clike";
import { go } from "@codemirror/legacy-modes/mode/go";
import { lua } from "@codemirror/legacy-modes/mode/lua";
import { perl } from "@codemirror/legacy-modes/mode/perl";
import { r } from "@codemirror/legacy-modes/mode/r";
import { ruby } from "@codemirror/legacy-modes/mode/ruby";
import { rust } from "@codemirror/legacy-modes/mode/rust";
import { shell } from "@codemirror/legacy-modes/mode/shell";
import type { Extension } from "@codemirror/state";

const stream = (parser: StreamParser<unknown>) => () => StreamLanguage.define(parser);

const HIGHLIGHTING: Record<string, () => Extension> = {
  python: () => python(),
  javascript: () => javascript(),
  typescript: () => javascript({ typescript: true }),
  // As the box runs it: with `<?php` or without.
  php: () => new LanguageSupport(phpLanguage.configure({ top: "Program" })),
  bash: stream(shell),
  sh: stream(shell),
  zsh: stream(shell),
  ruby: stream(ruby),
  perl: stream(perl),
  lua: stream(lua),
  r: stream(r),
  c: stream(c),
  cpp: stream(cpp),
  java: stream(java),
  go: stream(go),
  rust: stream(rust),
};

export function highlighting(language: string): Extension {
  return HIGHLIGHTING[language]?.() ?? [];
}
