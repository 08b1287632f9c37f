"use strict";
// Everything shown is set as text, never as HTML. A page asks only the server it came from.
const base = new URL(".", location.href);
const $ = (id) => document.getElementById(id);
let key = "";  // kept in this page only, until it is left
let asking = null;

function make(tag, properties = {}, ...children) {
  const { className = "", ...rest } = properties;
  const made = Object.assign(document.createElement(tag), rest);
  if (className) made.className = className;
  made.append(...children.filter((each) => each !== null && each !== undefined));
  return made;
}

const signed = (headers = {}) => (key ? { ...headers, Authorization: `Bearer ${key}` } : headers);

// Where the server wants a key, the person is asked for one, until it is a known one.
async function ask(path, options = {}) {
  for (;;) {
    const used = key;
    const answer = await fetch(new URL(path, base), { ...options, headers: signed(options.headers) });
    if (answer.status !== 401) {
      $("door").hidden = true;
      return answer;
    }
    if (used !== key) continue;  // another question has got one meanwhile
    asking = asking || askForKey(used ? "this key is not known" : "");
    await asking;
  }
}

function askForKey(why) {
  $("refused").textContent = why;
  $("door").hidden = false;
  $("key").focus();
  return new Promise((resolve) => {
    $("door").onsubmit = (event) => {
      event.preventDefault();
      key = $("key").value.trim();
      asking = null;
      resolve();
    };
  });
}

// What an answer with an error says, in the words of whichever family of routes it comes from.
async function complaint(answer) {
  const text = await answer.text();
  try {
    const { error } = JSON.parse(text);
    return error.message || error;
  } catch {
    return text || `${answer.status} ${answer.statusText}`;
  }
}
