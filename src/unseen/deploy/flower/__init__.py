"""Rounds across machines that keep their data, carried by Flower.

One Flower message goes to a site, and one comes back. Both are a *message* (`message.py`): a header that are
plain JSON, and named arrays. Whoever runs Flower's SuperLink is the coordinator; a site is a SuperNode.

    ask         goes down                                       comes back
    ----------  ----------------------------------------------  ------------------------------------------
    census      how images are read (size, ...)                 site's name, classes, samples of each,
                                                                shape of a sample, fingerprint
    train       job, round, weights, what the method            for each of the site's clients: weights,
                broadcasts, each client's version of memory     what the method sends, counts, loss
    consult     messages of the protection's server half        each client's answer or refusal
    evaluate    job, weights, which splits                      sums that metrics follow from (tallies)

The job is the whole resolved configuration, together with what no site can know alone: the names of all
domains and classes in their order, and the source domains. From it and its own samples
a site builds what it would be on one machine: its split, its clients, its model. Every draw comes from a
generator named after the site's domain or its client, so weights come out the same to the last bit.

What a client remembers lies on the site's disk, in a folder named after the run, one file for each
version. The coordinator's checkpoint says which version counts (a round's number), every message names it,
and only then does the site delete older ones. So a site or a coordinator may die at any moment: the next
message says where to go on. Held-out sites are asked to evaluate, never to train.

Either side names the model's layout by its hash and refuses another one. A site that does not answer in
time, answers with an error or with numbers that are not finite is left out of the round; the records say
so, and the site is told with the next message.
"""
