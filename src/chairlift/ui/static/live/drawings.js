// Drawings of the batch: the flow of one row, the last steps, and the map of the KV cache.
import { NUM_COLUMNS, NUM_STEPS } from "./batch_model.js";

const FREE = -1;
const CACHED = -2;
export const WITHHELD = -3;
export const SHARED = -4;
const HELD = -5; // held by one row, which the map of a large cache does not name

/** Draw the last seconds of one row, newest at the right: prefill as blocks, decoded tokens as a line of bars. */
export function drawFlow(flow, column, largest) {
  return (context, width, height, colors) => {
    const step = width / NUM_COLUMNS;
    const base = height - 2;
    for (const [at, { state, prefill, decode, from }] of flow.columns) {
      const x = (from - column + NUM_COLUMNS - 1) * step;
      const size = (at - from + 1) * step;
      if (x < -size) continue;
      const isWaiting = state === "waiting" || state === "preempted";
      if (isWaiting && !prefill && !decode) {
        context.fillStyle = state === "preempted" ? colors.preempted : colors.waiting;
        context.fillRect(x, base - 3, Math.max(1, size - 1), 3);
        continue;
      }
      let bottom = base;
      if (decode) {
        const tall = Math.max(3, Math.min(1, Math.log1p(decode) / Math.log1p(largest.decode)) * (height - 6) * 0.55);
        context.fillStyle = colors.decode;
        context.fillRect(x, bottom - tall, Math.max(1, size - 1), tall);
        bottom -= tall + 1;
      }
      if (prefill) {
        const tall = Math.max(4, Math.min(1, Math.log1p(prefill) / Math.log1p(largest.prefill)) * (height - 4));
        context.fillStyle = colors.prefill;
        context.fillRect(x, Math.max(0, bottom - tall), Math.max(1.5, size - 1), Math.min(tall, bottom));
      }
      if (!prefill && !decode) {
        context.fillStyle = state === "prefill" ? colors.prefill : colors.decode;
        context.fillRect(x, base - 1, Math.max(1, size - 1), 1);
      }
    }
  };
}

/**
 * Draw the last steps as columns of tokens: chunks of prompts in the colors of their rows, decoded tokens below.
 * A line stands where steps are left out.
 */
export function drawSteps(steps, budget) {
  return (context, width, height, colors) => {
    const slot = width / NUM_STEPS;
    const most = Math.max(16, ...steps.map((step) => step.tokens));
    const scale = (height - 14) / (budget <= 1.5 * most ? budget * 1.02 : most * 1.05);
    context.fillStyle = colors.border;
    context.fillRect(0, height - 1, width, 1);
    if (budget * scale <= height) {
      context.fillStyle = colors.preempted;
      for (let x = 0; x < width; x += 8) context.fillRect(x, height - 1 - budget * scale, 4, 1);
    }
    steps.forEach((step, index) => {
      const x = width - (steps.length - index) * slot;
      let y = height - 1;
      if (step.isAfterGap) {
        context.fillStyle = colors.text;
        for (let at = 0; at < height; at += 6) context.fillRect(x - 0.5, at, 1, 3);
      }
      const draw = (tokens, fill) => {
        const size = Math.max(1, tokens * scale);
        context.fillStyle = fill;
        context.fillRect(x + 0.5, y - size, Math.max(1, slot - 1.5), Math.max(1, size - (size > 3 ? 1 : 0)));
        y -= size;
      };
      if (step.decodes.length) draw(step.decodes.length, colors.decode);
      for (const [key, tokens] of step.prefills) draw(tokens, colors.row(key));
    });
  };
}

/**
 * Draw every cell of the block map, in lines from the top left. The blocks of `key` stand out; a request whose grammar
 * is compiled has a key below zero, and no blocks.
 */
export function drawBlockMap(runs, key) {
  const highlighted = key !== null && key >= 0 ? key : null;
  let total = 0;
  for (let index = 1; index < runs.length; index += 2) total += runs[index];
  return (context, width, height, colors) => {
    const side = Math.max(3, Math.min(14, Math.floor(Math.sqrt((width * height) / Math.max(1, total)))));
    const perLine = Math.max(1, Math.floor(width / side));
    const cell = side > 5 ? side - 1 : side - 0.5;
    let at = 0;
    for (let index = 0; index < runs.length; index += 2) {
      const value = runs[index];
      context.fillStyle = fillOf(value, colors);
      context.globalAlpha = highlighted === null || value === highlighted ? 1 : 0.25;
      for (let number = 0; number < runs[index + 1]; number += 1, at += 1) {
        context.fillRect((at % perLine) * side, Math.floor(at / perLine) * side, cell, cell);
      }
    }
    context.globalAlpha = 1;
  };
}

function fillOf(value, colors) {
  if (value === FREE) return colors.hover;
  if (value === CACHED) return colors.cached;
  if (value === WITHHELD) return colors["border-strong"];
  if (value === SHARED) return colors.text;
  if (value === HELD) return colors.decode;
  return colors.row(value);
}
