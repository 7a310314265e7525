/* The parts of the console that stand in its menu. */
import type { IconName } from "../ui/icons";
import { paths } from "./paths";

export interface Place {
  to: string;
  text: string;
  icon: IconName;
}

export const PLACES: Place[] = [
  { to: paths.overview(), text: "Overview", icon: "grid" },
  { to: paths.jobs(), text: "Jobs", icon: "list" },
  { to: paths.queue(), text: "Queue", icon: "hourglass" },
  { to: paths.incidents(), text: "Incidents", icon: "alert" },
  { to: paths.nodes(), text: "Nodes", icon: "server" },
  { to: paths.projects(), text: "Projects", icon: "disk" },
  { to: paths.ledger(), text: "Ledger", icon: "ledger" },
  { to: paths.policies(), text: "Policies", icon: "shield" },
  { to: paths.access(), text: "Access", icon: "key" },
];
