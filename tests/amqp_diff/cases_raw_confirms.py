"""Confirms, transactions, direct replies."""

from amqp_diff.scene import Scene, case


@case
def confirms(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    lane.call("confirm.select")
    for number in range(10):
        lane.publish(queue, str(number))
    lane.confirms(10)
    lane.call("confirm.select")
    lane.publish(queue, "the eleventh")
    lane.confirms(11, 11)


@case
def confirms_of_persistent_messages(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue, durable=True)
    lane.call("confirm.select")
    for number in range(5):
        lane.publish(queue, str(number), properties={"delivery_mode": 2})
    lane.confirms(5)
    lane.message_count(queue)


@case
def confirm_select_without_an_answer(s: Scene) -> None:
    lane = s.wire().channel()
    lane.send("confirm.select", nowait=True)
    lane.publish("nobody", "x")
    lane.confirms(1)


@case
def unroutable_is_confirmed(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("confirm.select")
    lane.publish("nobody", "x")
    lane.confirms(1)


@case
def a_return_comes_before_its_confirm(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("confirm.select")
    for number in range(3):
        lane.publish("nobody", str(number), mandatory=True)
        lane.expect("basic.return", "basic.ack")
        lane.expect("basic.return", "basic.ack")


@case
def messages_before_select_are_not_counted(s: Scene) -> None:
    lane = s.wire().channel()
    lane.publish("nobody", "before")
    lane.call("confirm.select")
    lane.publish("nobody", "after")
    lane.confirms(1)


@case
def confirms_of_a_fanout(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("exchange.declare", exchange=s.name("x"), type="fanout")
    for word in ("one", "two", "three"):
        lane.call("queue.declare", queue=s.name(word), durable=True)
        lane.call("queue.bind", queue=s.name(word), exchange=s.name("x"))
    lane.call("confirm.select")
    for number in range(3):
        lane.publish("", str(number), s.name("x"), properties={"delivery_mode": 2})
    lane.confirms(3)


@case
def a_message_for_an_exclusive_queue_of_a_dead_connection_is_confirmed(s: Scene) -> None:
    wire, other = s.wire(), s.wire()
    queue = s.name()
    other.channel().call("queue.declare", queue=queue, exclusive=True)
    lane = wire.channel()
    lane.call("confirm.select")
    other.close()
    lane.publish(queue, "x", mandatory=True)
    lane.expect("basic.return")
    lane.confirms(1)


@case
def deliveries_come_while_confirms_do(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    lane.call("basic.consume", queue=queue, tag="t", no_ack=True)
    lane.call("confirm.select")
    for number in range(3):
        lane.publish(queue, str(number))
    lane.confirms(3)
    lane.deliveries(3)


@case
def confirms_and_transactions_exclude_each_other(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("confirm.select")
    lane.call("tx.select")
    lane.again()
    lane.call("tx.select")
    lane.call("confirm.select")


@case
def tx_commit(s: Scene) -> None:
    wire = s.wire()
    lane, other = wire.channel(), wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    lane.call("tx.select")
    lane.publish(queue, "1")
    lane.publish(queue, "2")
    lane.alive()
    other.message_count(queue)
    lane.call("tx.commit")
    other.message_count(queue)
    lane.call("tx.commit")
    other.message_count(queue)


@case
def tx_rollback(s: Scene) -> None:
    wire = s.wire()
    lane, other = wire.channel(), wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    lane.call("tx.select")
    lane.publish(queue, "1")
    lane.call("tx.rollback")
    lane.call("tx.commit")
    other.message_count(queue)


@case
def tx_acks(s: Scene) -> None:
    wire = s.wire()
    lane, other = wire.channel(), wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    for body in "123":
        lane.confirmed(queue, body)
    lane.call("tx.select")
    lane.call("basic.get", queue=queue)
    lane.call("basic.get", queue=queue)
    lane.send("basic.ack", delivery=1)
    lane.call("tx.rollback")
    lane.send("basic.ack", delivery=1)
    lane.send("basic.nack", delivery=2, requeue=True)
    other.message_count(queue)
    lane.call("tx.commit")
    other.call("basic.get", queue=queue)
    other.call("basic.get", queue=queue)
    other.call("basic.get", queue=queue)


@case
def tx_acks_are_lost_with_the_channel(s: Scene) -> None:
    wire = s.wire()
    lane, other = wire.channel(), wire.channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    lane.confirmed(queue, "1")
    lane.call("tx.select")
    lane.call("basic.get", queue=queue)
    lane.send("basic.ack", delivery=1)
    lane.publish(queue, "never")
    lane.call("channel.close", code=200, text="bye")
    other.call("basic.get", queue=queue)
    other.call("basic.get", queue=queue)


@case
def tx_returns_come_with_the_commit(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("tx.select")
    lane.publish("nobody", "x", mandatory=True)
    lane.nothing("basic.return")
    lane.send("tx.commit")
    lane.expect("basic.return", "tx.commit-ok")
    lane.expect("basic.return", "tx.commit-ok")


@case
def tx_ack_of_an_unknown_tag(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("tx.select")
    lane.send("basic.ack", delivery=7)
    lane.call("tx.commit")


@case
def tx_publish_to_a_missing_exchange(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("tx.select")
    lane.publish("k", "x", s.name("x"))
    lane.call("tx.commit")


@case
def tx_without_select(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("tx.commit")
    lane.again()
    lane.call("tx.rollback")


@case
def tx_select_twice(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("tx.select")
    lane.call("tx.select")
    lane.call("tx.rollback")


REPLIES = "amq.rabbitmq.reply-to"


@case
def direct_reply(s: Scene) -> None:
    asker, server = s.wire(), s.wire()
    ask, serve = asker.channel(), server.channel()
    queue = s.name()
    serve.call("queue.declare", queue=queue)
    ask.call("basic.consume", queue=REPLIES, tag="replies", no_ack=True)
    ask.publish(queue, "question", properties={"reply_to": REPLIES, "correlation_id": "1"})
    found = serve.call("basic.consume", queue=queue, tag="t", no_ack=True)
    delivered = serve.deliveries(1)
    reply_to = delivered[0].properties["reply_to"]
    assert found is not None
    serve.publish(reply_to, "answer", properties={"correlation_id": "1", "headers": {"a": 1}})
    ask.deliveries(1)
    serve.call("queue.declare", queue=reply_to, passive=True)
    ask.call("basic.cancel", tag="replies")
    serve.call("queue.declare", queue=reply_to, passive=True)
    serve.again()
    serve.publish(reply_to, "too late")
    serve.alive()


@case
def direct_reply_mandatory(s: Scene) -> None:
    lane = s.wire().channel()
    queue = s.name()
    lane.call("queue.declare", queue=queue)
    lane.call("basic.consume", queue=REPLIES, tag="replies", no_ack=True)
    lane.confirmed_on(queue, "question", properties={"reply_to": REPLIES})
    reply_to = lane.call("basic.get", queue=queue, no_ack=True).properties["reply_to"]
    lane.publish(reply_to, "answer", mandatory=True)
    lane.expect("basic.deliver", "basic.return")
    lane.expect("basic.deliver", "basic.return", patience=1)


@case
def direct_reply_needs_no_ack(s: Scene) -> None:
    s.wire().channel().call("basic.consume", queue=REPLIES, tag="replies")


@case
def direct_reply_without_a_consumer(s: Scene) -> None:
    lane = s.wire().channel()
    lane.publish(s.name("nobody"), "question", properties={"reply_to": REPLIES})
    lane.alive()


@case
def direct_reply_consumed_twice(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("basic.consume", queue=REPLIES, tag="one", no_ack=True)
    lane.call("basic.consume", queue=REPLIES, tag="two", no_ack=True)


@case
def direct_reply_declared(s: Scene) -> None:
    lane = s.wire().channel()
    lane.call("queue.declare", queue=REPLIES)
    lane.again()
    lane.call("queue.declare", queue=REPLIES, passive=True)
    lane.again()
    lane.call("queue.delete", queue=REPLIES)
    lane.again()
    lane.call("basic.get", queue=REPLIES)


@case
def direct_reply_to_a_made_up_name(s: Scene) -> None:
    lane = s.wire().channel()
    lane.publish(f"{REPLIES}.nonsense", "x", mandatory=True)
    lane.expect("basic.return", patience=2)
    lane.alive()
    lane.again()
    lane.call("queue.declare", queue=f"{REPLIES}.nonsense", passive=True)


@case
def direct_reply_to_an_ended_channel(s: Scene) -> None:
    wire = s.wire()
    ask, serve = wire.channel(), wire.channel()
    queue = s.name()
    serve.call("queue.declare", queue=queue)
    ask.call("basic.consume", queue=REPLIES, tag="replies", no_ack=True)
    ask.confirmed_on(queue, "question", properties={"reply_to": REPLIES})
    reply_to = serve.call("basic.get", queue=queue, no_ack=True).properties["reply_to"]
    ask.call("channel.close", code=200, text="bye")
    serve.publish(reply_to, "too late")
    serve.alive()
    serve.call("queue.declare", queue=reply_to, passive=True)
