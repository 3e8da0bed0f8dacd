// By amqplib, on Node. One case in one run: node node_cases.js CASE HOST PORT PREFIX VHOST; prints what the client sees, a line each.
'use strict';

const amqp = require('amqplib');

const say = (...words) => console.log(words.map((word) => (typeof word === 'string' ? word : JSON.stringify(word))).join(' '));
const short = (error) => `${error.message}`.replace(/"/g, "'");
const quiet = (emitter) => emitter.on('error', () => {});

async function said(what, waiting) {
  try {
    say(what, await waiting);
  } catch (error) {
    say(what, 'fails:', short(error));
  }
}

// Waits for `count` messages of a consumer.
function collect(channel, queue, count, options = {}, each = () => {}) {
  return new Promise((resolve, reject) => {
    const found = [];
    const late = setTimeout(() => reject(new Error(`${found.length} of ${count} came`)), 20000);
    const take = (message) => {
      found.push(message);
      each(message);
      if (found.length === count) {
        clearTimeout(late);
        resolve(found);
      }
    };
    channel.consume(queue, take, options).catch(reject);
  });
}

async function polled(channel, queue) {
  for (let tries = 0; tries < 500; tries += 1) {
    const message = await channel.get(queue, { noAck: true });
    if (message) return message;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return null;
}

const view = (message) => message && { fields: { ...message.fields, consumerTag: undefined }, properties: message.properties, body: message.content.toString() };

const CASES = {
  async declare_and_send(connection, name) {
    const channel = await connection.createChannel();
    await said('assert', channel.assertQueue(name('q'), { durable: true }));
    channel.sendToQueue(name('q'), Buffer.from('hello'), { persistent: true, headers: { a: 1 } });
    say(view(await polled(channel, name('q'))));
    await said('check', channel.checkQueue(name('q')));
    await said('delete', channel.deleteQueue(name('q')));
  },

  async work_queue(connection, name) {
    const channel = await connection.createChannel();
    await channel.assertQueue(name('q'));
    for (let number = 0; number < 5; number += 1) channel.sendToQueue(name('q'), Buffer.from(`${number}`));
    await channel.prefetch(1);
    const found = await collect(channel, name('q'), 5, {}, (message) => channel.ack(message));
    say(found.map((message) => [message.fields.deliveryTag, message.content.toString()]));
  },

  async options_of_queues(connection, name) {
    const channel = await connection.createChannel();
    const options = {
      expires: 100000, messageTtl: 60000, deadLetterExchange: '', deadLetterRoutingKey: 'dead', maxLength: 10, maxPriority: 5,
    };
    await said('assert', channel.assertQueue(name('q'), options));
    await said('again', channel.assertQueue(name('q'), options));
    quiet(channel);
    await said('otherwise', channel.assertQueue(name('q'), { ...options, maxLength: 11 }));
  },

  async publish_subscribe(connection, name) {
    const channel = await connection.createChannel();
    await said('exchange', channel.assertExchange(name('x'), 'fanout', { durable: false }));
    const { queue } = await channel.assertQueue('', { exclusive: true });
    await said('bind', channel.bindQueue(queue, name('x'), ''));
    channel.publish(name('x'), '', Buffer.from('to all'));
    say(view(await polled(channel, queue)));
  },

  async confirms(connection, name) {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue(name('q'), { maxLength: 2, arguments: { 'x-overflow': 'reject-publish' } });
    const published = [1, 2, 3].map((number) => new Promise((resolve) => {
      channel.sendToQueue(name('q'), Buffer.from(`${number}`), {}, (error) => resolve(error ? short(error) : 'confirmed'));
    }));
    say(await Promise.all(published));
  },

  async returned(connection) {
    const channel = await connection.createConfirmChannel();
    channel.on('return', (message) => say('returned', view(message)));
    channel.publish('', 'nobody', Buffer.from('x'), { mandatory: true, messageId: 'm' });
    await said('confirms', channel.waitForConfirms());
  },

  async remote_procedure_call(connection, name) {
    const [server, client] = [await connection.createChannel(), await connection.createChannel()];
    await server.assertQueue(name('rpc'));
    await server.consume(name('rpc'), (message) => {
      server.sendToQueue(message.properties.replyTo, Buffer.from(`${Number(message.content) * 2}`), {
        correlationId: message.properties.correlationId,
      });
      server.ack(message);
    });
    const answer = collect(client, 'amq.rabbitmq.reply-to', 1, { noAck: true });
    await client.checkQueue(name('rpc'));
    client.sendToQueue(name('rpc'), Buffer.from('21'), { replyTo: 'amq.rabbitmq.reply-to', correlationId: '7' });
    const [message] = await answer;
    say(message.properties.correlationId, message.content.toString());
  },

  async errors(connection, name) {
    const scripts = {
      missing: (channel) => channel.checkQueue(name('missing')),
      exchange: (channel) => channel.checkExchange(name('missing')),
      reserved: (channel) => channel.assertQueue('amq.mine'),
      purge: (channel) => channel.purgeQueue(name('missing')),
      consume: (channel) => channel.consume(name('missing'), () => {}),
      get: (channel) => channel.get(name('missing')),
      bind: (channel) => channel.bindQueue(name('missing'), 'amq.direct', 'k'),
    };
    for (const [what, script] of Object.entries(scripts)) {
      const channel = await connection.createChannel();
      quiet(channel);
      await said(what, script(channel));
    }
  },

  async connection_error(connection, name) {
    quiet(connection);
    const closed = new Promise((resolve) => { connection.on('close', (error) => resolve(error ? short(error) : 'closed')); });
    const channel = await connection.createChannel();
    quiet(channel);
    await said('wonder', channel.assertExchange(name('x'), 'wonder'));
    say(await closed);
  },

  async nack_and_reject(connection, name) {
    const channel = await connection.createChannel();
    await channel.assertQueue(name('q'));
    for (const body of ['a', 'b', 'c']) channel.sendToQueue(name('q'), Buffer.from(body));
    await channel.checkQueue(name('q'));
    const got = [];
    for (let count = 0; count < 3; count += 1) got.push(await channel.get(name('q')));
    channel.nack(got[0]);
    channel.reject(got[1], false);
    channel.ack(got[2]);
    const again = await channel.get(name('q'));
    say(again.fields.redelivered, again.content.toString());
    channel.nackAll(false);
    await said('check', channel.checkQueue(name('q')));
    await said('recover', channel.recover());
  },

  async dead_letters(connection, name) {
    const channel = await connection.createChannel();
    await channel.assertQueue(name('dead'));
    await channel.assertQueue(name('q'), { deadLetterExchange: '', deadLetterRoutingKey: name('dead') });
    channel.sendToQueue(name('q'), Buffer.from('x'), { headers: { mine: true } });
    await collect(channel, name('q'), 1, {}, (message) => channel.reject(message, false));
    const message = await polled(channel, name('dead'));
    const [death] = message.properties.headers['x-death'];
    say(Object.keys(message.properties.headers).sort(), death.reason, death.queue, death.count, death['routing-keys'], death.time['!']);
  },

  async exchange_bindings(connection, name) {
    const channel = await connection.createChannel();
    await channel.assertExchange(name('a'), 'topic', { alternateExchange: name('rest') });
    await channel.assertExchange(name('b'), 'headers', { internal: true, autoDelete: true });
    await channel.assertExchange(name('rest'), 'fanout');
    await said('bind', channel.bindExchange(name('b'), name('a'), 'k.#'));
    for (const word of ['q', 'unrouted']) await channel.assertQueue(name(word));
    await channel.bindQueue(name('q'), name('b'), '', { 'x-match': 'any', kind: 'good' });
    await channel.bindQueue(name('unrouted'), name('rest'), '');
    channel.publish(name('a'), 'k.1', Buffer.from('matches'), { headers: { kind: 'good' } });
    channel.publish(name('a'), 'other', Buffer.from('does not'));
    for (const word of ['q', 'unrouted']) say(word, (await polled(channel, name(word))).content.toString());
    await said('unbind', channel.unbindExchange(name('b'), name('a'), 'k.#'));
    quiet(channel);
    await said('auto-delete', channel.deleteQueue(name('q')));
    await said('gone', channel.checkExchange(name('b')));
  },

  async cancelled_by_a_delete(connection, name) {
    const [channel, other] = [await connection.createChannel(), await connection.createChannel()];
    await channel.assertQueue(name('q'));
    const cancelled = collect(channel, name('q'), 1);
    await channel.checkQueue(name('q'));
    await other.deleteQueue(name('q'));
    say(await cancelled);
  },

  async all_properties(connection, name) {
    const channel = await connection.createChannel();
    await channel.assertQueue(name('q'));
    const headers = { int: 1, big: 2 ** 40, float: 1.5, text: 'ä', list: [1, 'x'], table: { a: null }, off: false };
    channel.sendToQueue(name('q'), Buffer.from([0, 255]), {
      contentType: 'a/b', contentEncoding: 'e', headers, persistent: true, priority: 2, correlationId: 'c', replyTo: 'r',
      expiration: '60000', messageId: 'm', timestamp: 1700000000, type: 't', userId: 'guest', appId: 'a', CC: ['elsewhere'],
    });
    say(view(await polled(channel, name('q'))));
  },

  async large_message(connection, name) {
    const channel = await connection.createChannel();
    await channel.assertQueue(name('q'));
    channel.sendToQueue(name('q'), Buffer.alloc(700000, 'z'));
    say((await polled(channel, name('q'))).content.equals(Buffer.alloc(700000, 'z')));
  },

  async stream(connection, name) {
    const channel = await connection.createConfirmChannel();
    await said('assert', channel.assertQueue(name('q'), { durable: true, arguments: { 'x-queue-type': 'stream' } }));
    for (let number = 0; number < 3; number += 1) channel.sendToQueue(name('q'), Buffer.from(`${number}`));
    await channel.waitForConfirms();
    await channel.prefetch(10);
    const options = { arguments: { 'x-stream-offset': 1 } };
    const found = await collect(channel, name('q'), 2, options, (message) => channel.ack(message));
    say(found.map((message) => [message.properties.headers, message.content.toString()]));
  },
};

async function main([which, host, port, prefix, vhost]) {
  const connection = await amqp.connect({ protocol: 'amqp', hostname: host, port: Number(port), username: 'guest', password: 'guest', vhost, heartbeat: 0 });
  let over = false;
  connection.on('close', () => { over = true; });
  await CASES[which](connection, (word) => `${prefix}.${word}`);
  if (!over) await connection.close();
}

main(process.argv.slice(2)).catch((error) => {
  say('the script fails:', short(error));
  process.exit(1);
});
