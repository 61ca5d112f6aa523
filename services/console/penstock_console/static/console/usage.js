// @ts-check
// What the models and tools of a run used and cost, as a table.

import { html, money } from "./view.js";

const NUMBER = new Intl.NumberFormat();
const amount = ({ micros, unknown }) =>
  [...micros].map(([currency, value]) => money(currency, value)).concat(unknown ? [`${unknown} without a known price`] : []).join(" + ");

export function UsageTable({ transcript }) {
  const rows = [...transcript.costs.values()];
  if (!rows.length) return html`<p class="dim">No model or tool of this run has said what it used.</p>`;
  const row = (each, name) => html`<tr key=${`${each.kind} ${each.name}`}>
    <th scope="row">${each.kind} ${name}</th>
    <td class="number" data-label="Calls">${NUMBER.format(each.calls)}</td>
    <td class="number" data-label="Tokens in">${NUMBER.format(each.input)}</td>
    <td class="number" data-label="Tokens out">${NUMBER.format(each.output)}</td>
    <td class="number" data-label="Cost">${amount(each)}</td>
  </tr>`;
  return html`<table class="costs">
    <thead><tr><th scope="col">What</th><th scope="col">Calls</th><th scope="col">Tokens in</th><th scope="col">Tokens out</th><th scope="col">Cost</th></tr></thead>
    <tbody>${rows.map((each) => row(each, each.name))}${row(transcript.usage, "all")}</tbody>
  </table>
  ${transcript.usage.isEstimated && html`<p class="dim">Some numbers of tokens are estimated.</p>`}`;
}
