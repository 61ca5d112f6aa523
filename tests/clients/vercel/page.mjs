// Renders the page of docs/clients/vercel.md and uses it as a person does: sends a text, allows the
// call that the agent asks for, sends another text, stops the run, and prints what the page shows.
// `node page.mjs MODULE API TEXT`: MODULE is the page's code as JavaScript.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [module, api, text] = process.argv.slice(2);
const require = createRequire(module);
const load = name => import(pathToFileURL(require.resolve(name)));

const { Window } = await load('happy-dom');
const page = new Window({ url: 'http://127.0.0.1/' });
const names = ['window', 'document', 'navigator', 'HTMLElement', 'HTMLIFrameElement', 'FormData'];
for (const name of names) {
  const value = name === 'window' ? page : page[name];
  Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
}
const { fetch } = globalThis;
globalThis.fetch = (url, init) => fetch(String(url).replace('http://127.0.0.1:8000', api), init);

const { createElement } = await load('react');
const { createRoot } = await load('react-dom/client');
const { Page } = await import(pathToFileURL(module));
const root = page.document.createElement('div');
page.document.body.append(root);
const chat = `page-${process.pid}`;
createRoot(root).render(createElement(Page, { id: chat }));

const until = async (found, what) => {
  for (let tries = 0; tries < 600; tries++) {
    const value = found();
    if (value) return value;
    await new Promise(resolve => setTimeout(resolve, 50));
  }
  throw new Error(`the page never shows ${what}: ${root.innerHTML}`);
};
const button = name => [...root.querySelectorAll('button')].find(each => each.textContent === name);

const send = async words => {
  const input = await until(() => root.querySelector('input:not([disabled])'), 'an input');
  input.value = words;
  input.form.dispatchEvent(new page.Event('submit', { bubbles: true, cancelable: true }));
};

await send(text);
(await until(() => button('Allow'), 'the question')).click();
await until(() => root.textContent.includes('output-available'), 'the result');
await send('slow');
(await until(() => button('Stop'), 'a button to stop')).click();
await until(() => root.querySelector('input:not([disabled])'), 'that it is ready');
process.stdout.write(JSON.stringify({ chat, text: root.textContent }) + '\n');
process.exit(0);
