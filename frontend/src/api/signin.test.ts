import { afterEach, describe, expect, it, vi } from "vitest";
import { holdTyped, sessionEnded, setAsk, signedInAgain } from "./signin";

const left = vi.fn();
const resumed = vi.fn();
const isOver = vi.fn(() => Promise.resolve(true));
const ended = (): Promise<void> => sessionEnded({ leave: left, resume: resumed, isOver });

afterEach(() => {
  setAsk(null);
  vi.unstubAllGlobals();
  vi.clearAllMocks();
});

function pageWith(dialog: boolean): void {
  vi.stubGlobal("document", { querySelector: () => (dialog ? {} : null) });
}

describe("a session that ends under a read", () => {
  it("leads away where nothing was typed", async () => {
    pageWith(false);
    setAsk(vi.fn());
    await ended();
    expect(left).toHaveBeenCalledOnce();
  });

  it("is asked for over an open dialog, and over what a part of the page holds", async () => {
    for (const dialog of [true, false]) {
      pageWith(dialog);
      const release = dialog ? () => undefined : holdTyped();
      const ask = vi.fn(() => Promise.resolve(true));
      setAsk(ask);
      await ended();
      expect(ask).toHaveBeenCalledExactlyOnceWith(false);
      release();
    }
    expect([left.mock.calls.length, resumed.mock.calls.length]).toEqual([0, 2]);
    await ended();
    expect(left).toHaveBeenCalledOnce();
  });

  it("is asked for once, however many reads find it, and not again by reads once that was declined", async () => {
    pageWith(true);
    const ask = vi.fn(() => Promise.resolve(false));
    setAsk(ask);
    await Promise.all([ended(), ended()]);
    await ended();
    expect(ask).toHaveBeenCalledOnce();
    expect([left.mock.calls.length, resumed.mock.calls.length]).toEqual([0, 0]);
    ask.mockResolvedValue(true);
    await signedInAgain();
    await ended();
    expect(ask).toHaveBeenCalledTimes(3);
    expect(resumed).toHaveBeenCalledOnce();
  });

  it("is not asked for where somebody has signed in since, and the page goes on", async () => {
    pageWith(true);
    const ask = vi.fn(() => Promise.resolve(true));
    setAsk(ask);
    isOver.mockResolvedValueOnce(false);
    await ended();
    expect(ask).not.toHaveBeenCalled();
    expect(resumed).toHaveBeenCalledOnce();
  });
});
