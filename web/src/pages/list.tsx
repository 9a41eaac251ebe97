import type { ComponentChild } from "preact";

import type { Session } from "../api/client";
import { Approval, Approvals } from "./Approvals";
import { Audit } from "./Audit";
import { AuditRecord } from "./AuditRecord";
import { Host } from "./Host";
import { Load } from "./Load";
import { Playground } from "./Playground";
import { Run, Runs } from "./Runs";

export interface Page {
  name: string;
  title: string;
  /** After `g`. */
  key: string;
  isOffered: (session: Session) => boolean;
  render: (id: string | null, session: Session) => ComponentChild;
}

const always = () => true;

export const PAGES: Page[] = [
  { name: "playground", title: "Playground", key: "p", isOffered: always, render: () => <Playground /> },
  { name: "runs", title: "Runs", key: "r", isOffered: always, render: (id) => (id ? <Run id={id} /> : <Runs />) },
  { name: "load", title: "Load", key: "l", isOffered: always, render: () => <Load /> },
  {
    name: "approvals",
    title: "Approvals",
    key: "a",
    isOffered: (session) => session.approvals,
    render: (id, { decides }) => (id ? <Approval id={id} decides={decides} /> : <Approvals />),
  },
  {
    name: "audit",
    title: "Audit log",
    key: "u",
    isOffered: (session) => session.audit,
    render: (id) => (id ? <AuditRecord id={id} /> : <Audit />),
  },
  { name: "host", title: "Host", key: "h", isOffered: always, render: () => <Host /> },
];
