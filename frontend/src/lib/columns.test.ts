import { describe, expect, it } from "vitest";
import { type Columns, joined, readWhole } from "./columns";

const pages: Record<string, { columns: Columns; next: string | null; ranks: number }> = {
  first: { columns: { name: ["a", "b"], state: { words: ["ready", "cordoned"], at: [1, 0] }, risk: [0.5, null] }, next: "second", ranks: 5 },
  second: { columns: { name: ["c"], state: { words: ["draining"], at: [null] }, risk: [null] }, next: "third", ranks: 5 },
  third: { columns: { name: ["d", "e"], state: { words: ["draining", "ready"], at: [1, 0] }, risk: [0.1, 0] }, next: null, ranks: 5 },
};

describe("columns of several pages", () => {
  it("are read to their end, each row's word its own", async () => {
    const asked: (string | null)[] = [];
    const whole = await readWhole(async (cursor) => {
      asked.push(cursor);
      return pages[cursor ?? "first"]!;
    });
    expect(asked).toEqual([null, "second", "third"]);
    const { words, at } = (whole.columns as Columns)["state"] as { words: string[]; at: (number | null)[] };
    expect(at.map((place) => (place === null ? null : words[place]))).toEqual(["cordoned", "ready", null, "ready", "draining"]);
    expect(words).toEqual(["ready", "cordoned", "draining"]);
    expect(whole).toMatchObject({ columns: { name: ["a", "b", "c", "d", "e"], risk: [0.5, null, null, 0.1, 0] }, next: null, ranks: 5 });
  });
  it("of one page are that page", () => {
    expect(joined({ a: [1] }, { a: [] })).toEqual({ a: [1] });
  });
});
