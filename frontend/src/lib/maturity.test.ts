import { expect, it } from "vitest";
import { setBy } from "./maturity";
import { FEATURES } from "./maturity.gen";

const SPEC = { spec: { resiliency: { mode: "enforce", allow_faults: false, look_ranks: 8, budget: { max_restarts: 3 } } } };

it.each([
  [SPEC, "resiliency.mode", "resiliency.mode: enforce"],
  [SPEC, "resiliency.allow_faults", "resiliency.allow_faults: false"],
  [SPEC, "resiliency.budget", "resiliency.budget"],
  [SPEC, "checkpoint.local", "checkpoint.local"],
  [null, "resiliency.mode", "resiliency.mode"],
])("of %j says %s as %s", (spec, field, text) => {
  expect(setBy(spec, field)).toBe(text);
});

it("gives every feature one of two labels, and each experimental one its reason", () => {
  expect(new Set(FEATURES.map((feature) => feature.label))).toEqual(new Set(["production", "experimental"]));
  expect(FEATURES.filter((feature) => (feature.label === "experimental") !== (feature.why !== ""))).toEqual([]);
});
