// amqplib, for `warren bench amqp`: node amqp_node.js publish PORT QUEUE BYTES SECONDS · consume PORT QUEUE COUNT
'use strict';

const amqp = require('amqplib');

const PREFETCH = 500;

async function publish(connection, queue, size, seconds) {
  const channel = await connection.createConfirmChannel();
  await channel.assertQueue(queue, { durable: true });
  const body = Buffer.alloc(size, 'x');
  const began = process.hrtime.bigint();
  const end = began + BigInt(Math.round(seconds * 1e9));
  let messages = 0;
  while (process.hrtime.bigint() < end) {
    for (let number = 0; number < 1000; number += 1) channel.sendToQueue(queue, body, { persistent: true });
    messages += 1000;
    await channel.waitForConfirms();
  }
  return { messages, seconds: Number(process.hrtime.bigint() - began) / 1e9 };
}

async function consume(connection, queue, count) {
  const channel = await connection.createChannel();
  await channel.prefetch(PREFETCH);
  const began = process.hrtime.bigint();
  let taken = 0;
  await new Promise((resolve) => {
    channel.consume(queue, (message) => {
      channel.ack(message);
      taken += 1;
      if (taken === count) resolve();
    });
  });
  await channel.checkQueue(queue);
  return { messages: taken, seconds: Number(process.hrtime.bigint() - began) / 1e9 };
}

async function main([what, port, queue, ...numbers]) {
  const connection = await amqp.connect({ protocol: 'amqp', hostname: '127.0.0.1', port: Number(port), heartbeat: 0 });
  const run = what === 'publish' ? publish : consume;
  const before = process.cpuUsage();
  const found = await run(connection, queue, ...numbers.map(Number));
  const { user, system } = process.cpuUsage(before);
  console.log(JSON.stringify({ ...found, cpu_s: (user + system) / 1e6 }));
  await connection.close();
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
