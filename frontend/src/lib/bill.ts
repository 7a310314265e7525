/* Months of a bill, and what it comes to, as people read them. */
import { gpuHours, money } from "./ledger";

export const MONTH = /^[0-9]{4}-(0[1-9]|1[0-2])$/;

/** "2026-10": the month in UTC of a moment in milliseconds. */
export const thisMonth = (nowMs: number): string => new Date(nowMs).toISOString().slice(0, 7);

/** GPU time, and money where there is a price. */
export const amount = (gpuS: number, of: number | null, currency: string | null): string => (of === null || currency === null ? gpuHours(gpuS) : `${gpuHours(gpuS)}, ${money(of, currency)}`);
