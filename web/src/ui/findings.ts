// Findings as the editor shows them: a mark in the gutter, and a line under the code.
import type { Diagnostic } from "@codemirror/lint";
import type { Text } from "@codemirror/state";

import type { Finding, Severity } from "../api/schema";
import { visibleLine } from "../lib/inert";

const MARKS: Record<Severity, Diagnostic["severity"]> = {
  info: "info",
  low: "info",
  medium: "warning",
  high: "error",
  critical: "error",
};

export function diagnostics(findings: Finding[], document: Text): Diagnostic[] {
  return findings.map((finding) => {
    const from = offset(document, finding.line, finding.column);
    const to = Math.max(from, offset(document, finding.end_line, finding.end_column));
    const message = `${finding.severity}: ${visibleLine(finding.message)} (${visibleLine(finding.rule)})`;
    return { from, to, severity: MARKS[finding.severity], message };
  });
}

/** Columns count characters, and positions of the editor count UTF-16 units. What lies outside of the code is moved into it. */
export function offset(document: Text, line: number, column: number): number {
  const { from, text } = document.line(Math.min(Math.max(line, 1), document.lines));
  return from + [...text].slice(0, Math.max(column - 1, 0)).join("").length;
}
