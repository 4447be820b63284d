import assert from 'node:assert/strict'
import test from 'node:test'
import { createOpenAI } from '@ai-sdk/openai'
import { generateText, stepCountIs, streamText, tool } from 'ai'
import OpenAI, { toFile } from 'openai'
import { z } from 'zod'
import { base, keys, leaves, url } from './site.js'

const ai = new OpenAI({ baseURL: base, apiKey: keys.main, maxRetries: 0 })
const post = async (path, body) => {
  const answer = await fetch(url + path, { method: 'POST', body: JSON.stringify(body), headers: { authorization: 'Bearer ' + keys.main, 'content-type': 'application/json' } })
  return { status: answer.status, body: await answer.json() }
}

test('responses: plain and streamed', async () => {
  const whole = await ai.responses.create({ model: 'chat', input: 'hello', max_output_tokens: 8 })
  assert.equal(whole.output_text.split(' ').length, 8)
  assert.equal(whole.usage.output_tokens, 8)
  let text = ''
  let last = null
  for await (const event of await ai.responses.create({ model: 'chat', input: 'hello', max_output_tokens: 8, stream: true })) {
    if (event.type === 'response.output_text.delta') text += event.delta
    last = event
  }
  assert.equal(text, whole.output_text)
  assert.equal(last.type, 'response.completed')
  const final = await ai.responses.stream({ model: 'chat', input: 'hello', max_output_tokens: 8 }).finalResponse()
  assert.equal(final.output_text, text)
})

test('responses: get, cancel, delete', async () => {
  const kept = await ai.responses.create({ model: 'chat', input: 'keep this', max_output_tokens: 4 })
  assert.equal((await ai.responses.retrieve(kept.id)).output_text, kept.output_text)
  let again = ''
  for await (const event of await ai.responses.retrieve(kept.id, { stream: true })) {
    if (event.type === 'response.output_text.delta') again += event.delta
  }
  assert.equal(again, kept.output_text)
  await leaves(async () => {
    const behind = await ai.responses.create({ model: 'chat', input: 'a long story', max_output_tokens: 8000, background: true })
    assert.equal(behind.status, 'in_progress')
    assert.equal((await ai.responses.cancel(behind.id)).status, 'cancelled')
  })
  await ai.responses.delete(kept.id)
  await assert.rejects(ai.responses.retrieve(kept.id), OpenAI.NotFoundError)
  await assert.rejects(ai.responses.retrieve('resp_nobody'), OpenAI.NotFoundError)
})

test('responses: errors, in time and in mid-stream', async () => {
  await assert.rejects(ai.responses.create({ model: 'nobody', input: 'x' }), OpenAI.NotFoundError)
  await assert.rejects(ai.responses.create({ model: 'chat', input: 'fault:refuse-429' }), OpenAI.RateLimitError)
  for (const kind of ['die', 'error-object']) {
    const raised = []
    let ended = ''
    try {
      for await (const event of await ai.responses.create({ model: 'chat', input: `fault:${kind}`, stream: true })) ended = event.type
    } catch (err) {
      raised.push(err)
    }
    assert(raised[0] instanceof OpenAI.APIError || ended === 'error' || ended === 'response.failed', `${kind}: ended with ${ended}`)
  }
})

test('responses: tools, by the Vercel SDK', async () => {
  const model = createOpenAI({ baseURL: base, apiKey: keys.main }).responses('chat')
  const tools = { get_weather: tool({ inputSchema: z.object({ city: z.string() }), execute: () => 'warm' }) }
  const plain = await generateText({ model, tools, stopWhen: stepCountIs(3), prompt: 'call:get_weather', providerOptions: { openai: { store: false } } })
  assert.equal(plain.steps.length, 2)
  const streamed = streamText({ model, tools, stopWhen: stepCountIs(3), prompt: 'call:get_weather', providerOptions: { openai: { store: false } } })
  await streamed.consumeStream()
  assert.equal(await streamed.text, plain.text)
})

test('audio: a file, sent before the model', async () => {
  const file = await toFile(Buffer.alloc(1 << 20, 's'), 'speech.wav')
  const whole = await ai.audio.transcriptions.create({ file, model: 'chat' })
  assert.match(whole.text, /./)
  let last = null
  for await (const event of await ai.audio.transcriptions.create({ file, model: 'chat', stream: true })) last = event
  assert.equal(last.type, 'transcript.text.done')
  assert.equal(last.text, whole.text)
  assert.equal(await ai.audio.transcriptions.create({ file, model: 'chat', response_format: 'text' }), whole.text)
  await assert.rejects(ai.audio.transcriptions.create({ file, model: 'nobody' }), OpenAI.NotFoundError)
  await assert.rejects(ai.audio.transcriptions.create({ file, model: 'chat', response_format: 'srt' }), OpenAI.BadRequestError)
})

test('rerank, score and tokenize', async () => {
  const ranked = await post('/v1/rerank', { model: 'chat', query: 'q', documents: ['one', 'two', 'three'], top_n: 2 })
  assert.equal(ranked.body.results.length, 2)
  const scored = await post('/v1/score', { model: 'chat', text_1: 'q', text_2: ['one', 'two'] })
  assert.equal(scored.body.data.length, 2)
  const tokens = await post('/tokenize', { model: 'chat', prompt: 'hello there' })
  assert.equal(tokens.body.count, 3)
  assert.equal((await post('/v1/rerank', { model: 'nobody', query: 'q', documents: ['x'] })).status, 404)
})
