/* Who may do what and who did: the audit log, API tokens, agents and settings; administrators see all of it, others their tokens. */
import { useQuery } from "@tanstack/react-query";
import type { ReactElement } from "react";
import * as queries from "../api/queries";
import { AgentList } from "../components/AgentList";
import { AuditLog } from "../components/AuditLog";
import { SettingsList } from "../components/SettingsList";
import { TokenList } from "../components/TokenList";
import { TO_READ } from "../lib/needs.gen";
import { may } from "../lib/rights";
import { PageHead } from "../ui/basics";
import { type Tab, Tabs } from "../ui/tabs";

export function AccessPage(): ReactElement {
  const me = useQuery(queries.me()).data;
  const admin = me !== undefined && may(me, TO_READ["/audit"], null);
  const tokens: Tab = { id: "tokens", label: "API tokens", body: () => <TokenList admin={admin} /> };
  const tabs: Tab[] = admin ? [
    { id: "audit", label: "Audit log", body: () => <AuditLog /> }, tokens,
    { id: "agents", label: "Agents", body: () => <AgentList /> }, { id: "settings", label: "Settings", body: () => <SettingsList /> },
  ] : [tokens];
  return (
    <>
      <title>Access - Holdfast</title>
      <PageHead title="Access">{admin ? null : <p className="muted">The audit log, the agents and the settings are for administrators.</p>}</PageHead>
      <div className="panel"><Tabs label="Access" tabs={tabs} /></div>
    </>
  );
}
