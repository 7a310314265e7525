/* What everything that draws on a canvas asks of the page: how wide its place is, and which colours hold now. */
import { type RefObject, useEffect, useRef, useState } from "react";

/** The colour of a token: --ok-solid and so on. */
export const token = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** An element, and the width that its content has, in whole px: without its padding and its scroll bar; 0 before it is laid out. */
export function useWidth(): [RefObject<HTMLDivElement | null>, number] {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const measure = (): void => {
      const { paddingLeft, paddingRight } = getComputedStyle(element);
      setWidth(Math.floor(element.clientWidth - Number.parseFloat(paddingLeft) - Number.parseFloat(paddingRight)));
    };
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    measure();
    return () => observer.disconnect();
  }, []);
  return [box, width];
}

/** Fills a rectangle, in px of the page, with the colour of a token. */
export type Fill = (x: number, y: number, width: number, height: number, tokenName: string) => void;

/** Draws into a canvas's own pixels: 100,000 small squares take some milliseconds, and a tenth of a second as rectangles.
    Returns what to write text with, in px of the page; null where there is nothing to draw on. */
export function drawPixels(canvas: HTMLCanvasElement, width: number, height: number, draw: (fill: Fill) => void): CanvasRenderingContext2D | null {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  if (!context || canvas.width === 0 || canvas.height === 0) return null;
  const picture = context.createImageData(canvas.width, canvas.height);
  const pixels = new Uint32Array(picture.data.buffer);
  const colour = colours(context);
  draw((x, y, w, h, name) => {
    const pixel = colour(name);
    const left = Math.max(0, Math.round(x * ratio));
    const right = Math.min(canvas.width, Math.round((x + w) * ratio));
    const bottom = Math.min(canvas.height, Math.round((y + h) * ratio));
    for (let row = Math.max(0, Math.round(y * ratio)); row < bottom; row += 1) pixels.fill(pixel, row * canvas.width + left, row * canvas.width + right);
  });
  context.putImageData(picture, 0, 0);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = `600 11.5px ${getComputedStyle(canvas).fontFamily}`;
  context.fillStyle = token("--muted");
  return context;
}

/** A token's colour as a pixel has it: the canvas knows how to read every notation, and answers in #rrggbb. */
function colours(context: CanvasRenderingContext2D): (name: string) => number {
  const known = new Map<string, number>();
  return (name) => {
    let pixel = known.get(name);
    if (pixel === undefined) {
      context.fillStyle = token(name);
      const hex = Number.parseInt(String(context.fillStyle).slice(1, 7), 16);
      pixel = (0xff000000 | ((hex & 0xff) << 16) | (hex & 0xff00) | (hex >> 16)) >>> 0;
      known.set(name, pixel);
    }
    return pixel;
  };
}
