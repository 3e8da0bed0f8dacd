"""The main job, `warren demo`: producers, consumers and a Spark stream over real records, which then checks itself.

inputs     the records of a file, and how they are routed
direct     the same figures computed straight from the file: what the job's results are compared with
producer   a process that publishes half of the records      consumer   a process that receives and acks
stream     a process with the Spark session                  children   starting, hearing and ending these processes
chaos      SIGKILLs on the way                               run        the job from start to end
check      the comparison                                    report     what is printed
"""
