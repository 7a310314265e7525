import { renderHook } from "@testing-library/react";
import { MemoryRouter } from "react-router";
import { expect, it } from "vitest";
import { useSetParam } from "./params";

it("is the same function while the address is: what is drawn with it is not drawn again", () => {
  const { result, rerender } = renderHook(() => useSetParam(), { wrapper: MemoryRouter });
  const before = result.current;
  rerender();
  expect(result.current).toBe(before);
});
