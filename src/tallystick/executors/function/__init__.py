"""The function executor: tasks are Python functions, called inside the engine.

    task        what an author writes: `@task`, `TaskContext`
    resolve     from "module:function" and a folder to something that can be called
    roots       two folders that each have a `shop.py`, in one process
    arguments   from the JSON of `with:` to typed arguments, and from a result back to JSON
    ends        what it means that a function ended like this: the table
    threads     a bounded pool whose threads never hold up the end of the process
    watchdog    says which line blocks the engine's loop
    executor    all of it, behind the contract

A function leaves no record of its own. While its process lives, the executor knows all about it;
after that nobody does, and the effect class decides (`core/recovery`).
"""
