import { expect, it } from "vitest";
import { projectOf } from "./draft";

it.each([
  ["metadata:\n  name: a\n  project: vision\nspec:\n  project: other\n", "vision"],
  ["metadata: {name: a, project: vision}\nspec: {}\n", "vision"],
  ['{"metadata": {"name": "a", "project": "vision"}, "spec": {}}', "vision"],
  ["kind: TrainJob\nmetadata:\n  name: a\nspec:\n  project: other\n", null],
  ["metadata:\n  project:\n", null],
  ["", null],
])("%j names the project %s", (text, project) => {
  expect(projectOf(text)).toBe(project);
});
